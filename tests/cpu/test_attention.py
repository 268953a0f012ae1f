"""Attention mass by page: what numpy and transformers compute, at no token's cost."""

import numpy as np
import pytest

from tokenix.drivers.cpu.attention import _add_mass
from tokenix.drivers.cpu.chunks import Chunk
from tokenix.tests.cpu.conftest import CODED, FAMILIES, Model, RandomWeights
from tokenix.tests.cpu.test_logits import transformer


def run(model, *chunks):
    """Logits, a copy, and masses."""
    masses = []
    return model.step.forward(model.tables, list(chunks), masses).rows.copy(), masses


def by_page(weights, page_tokens):
    """Sums over pages of weights [.., keys]."""
    padded = np.zeros((*weights.shape[:-1], -(-weights.shape[-1] // page_tokens) * page_tokens))
    padded[..., : weights.shape[-1]] = weights
    return padded.reshape(*weights.shape[:-1], -1, page_tokens).sum(axis=-1)


@pytest.mark.parametrize(("keys", "first", "page_tokens"), [(1, 0, 16), (16, 3, 16), (75, 6, 32)])
def test_a_kernel_sums_softmax_weights_by_page(keys, first, page_tokens, seed):
    rng = np.random.default_rng(seed)
    slots, columns, padded = 9, 16, -(-keys // 16) * 16
    weights = np.zeros((columns, padded), np.float32)
    weights[:slots, :keys] = rng.random((slots, keys))
    weights[:, keys:] = np.nan
    normal = np.nansum(weights[:slots], axis=1)
    mass = np.full(-(-keys // page_tokens) + 2, 0.5, np.float32)
    blocks = np.ascontiguousarray(weights.reshape(columns, -1, 16).swapaxes(0, 1))
    _add_mass(blocks, normal, first, keys, page_tokens, mass)
    shares = weights[first:slots, :keys] / normal[first:, None].astype(np.float64)
    expected = 0.5 + np.append(by_page(shares, page_tokens).sum(axis=0), [0, 0])
    np.testing.assert_allclose(mass, expected, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_masses_are_those_of_transformers(family, tokens):
    torch = pytest.importorskip("torch")
    config, text = FAMILIES[family], tokens[:75]
    weights = RandomWeights(config)
    model = Model(config, weights, kv="f32", dense="f32")
    reference = transformer(config, weights)
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        told = reference(torch.tensor([text]), output_attentions=True).attentions
    attention = torch.stack(told).numpy()[:, 0].astype(np.float64)
    for start, end in ((0, 40), (40, 74), (74, 75)):
        _, (mass,) = run(model, Chunk(0, start, tuple(text[start:end]), None))
        expected = by_page(attention[:, :, end - 1, :end], 16).mean(axis=(0, 1))
        np.testing.assert_allclose(mass, expected, atol=2e-5)


@pytest.mark.parametrize("kv", ["f16", *CODED])
@pytest.mark.parametrize("family", ["llama", "one kv head"])
def test_asking_changes_no_bit(kv, family, tokens):
    plain, asked = (Model(FAMILIES[family], kv=kv) for _ in range(2))
    chunks = [
        [Chunk(0, 0, tuple(tokens[:60]), None), Chunk(1, 0, tuple(tokens[:9]), False)],
        [Chunk(1, 9, tuple(tokens[9:40]), None), Chunk(0, 60, (tokens[60],), None)],
        [Chunk(2, 0, tuple(tokens[:3]), True), Chunk(0, 61, (tokens[61],), None)],
    ]
    for part in chunks:
        expected = plain.run(*part)
        got, masses = run(asked, *part)
        assert (got.view(np.int32) == expected.view(np.int32)).all()
        asking = [chunk for chunk in part if chunk.logits is None]
        for chunk, mass in zip(asking, masses, strict=True):
            assert len(mass) == -(-(chunk.start + len(chunk.tokens)) // 16)
            assert mass.dtype == np.float32 and (mass > 0).all()
            assert mass.sum() == pytest.approx(1, abs=1e-5)
    for table, vpn in ((0, 0), (0, 3), (1, 2), (2, 0)):
        assert (plain.page(table, vpn) == asked.page(table, vpn)).all()


def test_a_mass_does_not_depend_on_the_batch_or_the_pass(tokens):
    model = Model(FAMILIES["llama"], frames=240)
    text = (tokens * 3)[:250]
    _, (alone,) = run(model, Chunk(0, 0, tuple(text), None))
    _, masses = run(model, *[Chunk(table, 0, tuple(text), None) for table in (1, 2, 3)])
    assert all((mass == alone).all() for mass in masses) and len(masses) == 3
