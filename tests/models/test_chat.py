import pytest

from tokenix.models.chat import ChatTemplate
from tokenix.tests.models.tiny_models import TEMPLATE

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi <b>&</b> é"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "and?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "é <x>"}}]
TEMPLATES = [
    TEMPLATE,
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}"
    "[{{ loop.index }}] {{ m.content | trim }}\n{% endfor %}",
    "{%- if tools %}\n    {{- tools | tojson(indent=2) }}\n{%- endif %}\n"
    "{%- set ns = namespace(n=0) %}\n{%- for m in messages %}\n    {%- set ns.n = ns.n + 1 %}\n"
    "    {{- m['content'].split('h')[-1] }}\n{%- endfor %}\n{{- ns.n }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}"
    "{% endfor %}{{ eos_token }}{{ missing }}{{ flag | default('no') }}",
    "{{ messages | tojson }}"
    "{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}",
]


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_as_in_transformers(source, prompt, tools):
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {"bos_token": "<s>", "eos_token": "</s>"}
    want, _ = render_jinja_template(
        conversations=[TALK],
        tools=tools,
        chat_template=source,
        add_generation_prompt=prompt,
        enable_thinking=False,
        **special,
    )
    got = ChatTemplate(source, special).render(TALK, prompt, tools, enable_thinking=False)
    assert got == want[0]


def test_smollm2_conversation(smollm2):
    text = smollm2.chat.render(TALK)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert text.endswith("<|im_start|>assistant\n")
    assert smollm2.tokenizer.encode(text)[0] == 1
    assert "named SmolLM" in smollm2.chat.render(TALK[1:])


def test_tools_choose_their_template():
    chat = ChatTemplate("plain", named={"tool_use": "tools!"})
    assert chat.render(TALK) == "plain"
    assert chat.render(TALK, tools=TOOLS) == "tools!"


FAILING = [
    "{{ raise_exception('roles must\nalternate') }}",
    "{% for m in %}",
    "{{ messages.nothing.at_all }}",
    "{{ 1 / 0 }}",
    "{{ messages + 1 }}",
    "{{ messages[0].__class__.__mro__ }}",
    "{{ ''.__class__.__subclasses__() }}",
    "{% set ns = namespace(a=1) %}{% set ns.__class__ = 1 %}",
    "{{ messages.append(1) }}",
    "{{ 'x' * 999999999 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in range(99999999) %}x{% endfor %}",
    "{% for i in range(9999) %}xxxxxxxxxxxx{% endfor %}",
    "{% include 'etc' %}",
    "{{ 'x' | nofilter }}",
    "{{ 'abc'.format(1).encode('nope') }}",
]


@pytest.mark.parametrize("source", FAILING)
def test_failures_are_one_line_value_errors(source):
    with pytest.raises(ValueError) as caught:
        ChatTemplate(source, max_output_chars=10_000).render(TALK)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("chat template")


@pytest.mark.parametrize("messages", [["hi"], [{"content": "x"}], [{"role": 3}], [None]])
def test_messages_that_are_not(messages):
    with pytest.raises(ValueError, match="has no role"):
        ChatTemplate(TEMPLATE).render(messages)


def test_messages_are_not_changed():
    talk = [dict(message) for message in TALK]
    ChatTemplate(TEMPLATE).render(talk)
    with pytest.raises(ValueError):
        ChatTemplate("{{ messages[0].update({'role': 'x'}) }}").render(talk)
    assert talk == TALK
