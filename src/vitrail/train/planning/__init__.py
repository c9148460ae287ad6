"""From pictures, a wish and a machine to a plan: each rule with its reason, and what the run will take."""
