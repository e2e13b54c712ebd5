"""The load generator: processes that send requests at their times and note when each event of an answer came."""
