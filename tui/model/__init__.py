"""What is shown, as plain values: from a snapshot to rows, gauges and histories. No Textual here."""
