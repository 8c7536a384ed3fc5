"""From scheduled loop programs to loop programs ready for code generation."""
