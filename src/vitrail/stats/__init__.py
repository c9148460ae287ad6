"""Statistics without a model: intervals around figures that come from few pictures."""
