"""Parts of synthetic biographies: names, templates, vocabulary."""
