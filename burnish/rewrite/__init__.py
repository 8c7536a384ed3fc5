"""The superoptimizer: substitutions generated, proved, and kept only when they win (thesis-jia chapter 2)."""
