"""Graph neural networks on whole graphs: graphs, their partitions, layers and training (ROC, Jia 2020, chapter 4)."""
