"""What a training consists of: kept in checkpoints, handed to other workers, and compared between them."""
