"""Token mixers: softmax attention and linear attention."""
