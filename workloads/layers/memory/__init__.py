"""Memory tables and the layers that read them."""
