"""The two themes of our own. Those of Textual can be chosen too."""

from textual.theme import Theme

DARK = Theme(
    name="tokenix-dark",
    primary="#6ea8fe",
    secondary="#4fc4cf",
    success="#6fd08c",
    warning="#f2b84b",
    error="#f4707a",
    accent="#b48ef5",
    foreground="#d3dae8",
    background="#10131a",
    surface="#161a23",
    panel="#1f2531",
    dark=True,
    variables={
        "border": "#333c4d",
        "border-blurred": "#2a3140",
        "footer-key-foreground": "#6ea8fe",
    },
)

LIGHT = Theme(
    name="tokenix-light",
    primary="#1f6feb",
    secondary="#0f7a86",
    success="#1a7f37",
    warning="#9a6700",
    error="#cf222e",
    accent="#8250df",
    foreground="#24292f",
    background="#fbfcfd",
    surface="#f3f5f8",
    panel="#e6eaf0",
    dark=False,
    variables={
        "border": "#c3cbd6",
        "border-blurred": "#d8dee6",
        "footer-key-foreground": "#1f6feb",
    },
)

PLAIN = "ansi-dark"
"""Where there is to be no colour: the terminal's own."""
