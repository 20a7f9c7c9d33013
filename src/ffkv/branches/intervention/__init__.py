"""What memories cause: interventions on their coefficients, with controls."""
