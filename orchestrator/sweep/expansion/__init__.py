"""From the sections of a sweep file to trials."""
