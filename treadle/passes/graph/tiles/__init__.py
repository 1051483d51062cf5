"""Products for a CPU core's matrix unit: panels of constants, and what is known of operands of bytes."""
