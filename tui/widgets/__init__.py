"""What draws: lines of text by the line API. What they show is in `tui.model`."""
