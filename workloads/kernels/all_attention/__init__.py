"""All-attention: one softmax over positions and persistent vectors."""
