"""The GEMM main loop of pk_runtime beside cuBLAS, on one GPU."""
