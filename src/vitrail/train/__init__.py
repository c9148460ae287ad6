"""The training room: a plan, the page of plain code that follows it, and the run folder that keeps what came of it."""
