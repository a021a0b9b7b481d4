"""Tables, figures and pages, from records only. Nothing here trains."""
