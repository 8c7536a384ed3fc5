"""Yardsticks: exact and simulated plans, orders and clusters that the product's own methods are measured against."""
