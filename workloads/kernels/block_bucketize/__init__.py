"""Block bucketize: reads of a bag by the rank that holds their row, and back."""
