"""What is composed of widgets, and the dialogs."""
