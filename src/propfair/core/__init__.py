"""The round: the client program, the aggregator, and the messages between them."""
