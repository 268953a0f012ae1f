"""What is shown, as plain values: snapshots to rows, gauges, histories. No Textual here."""
