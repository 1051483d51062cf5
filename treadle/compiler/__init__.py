"""The stages that lower a model, and what asks for them."""
