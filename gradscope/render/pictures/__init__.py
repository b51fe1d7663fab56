"""Pictures of graphs: what is shown, laid out, drawn."""
