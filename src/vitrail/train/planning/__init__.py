"""The planner: rules from images, request and machine to a plan with reasons, and the cost estimate."""
