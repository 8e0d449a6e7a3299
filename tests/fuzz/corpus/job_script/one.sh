#!/bin/sh
#TGPU --gpus 2 --time 1h
# TGPU --env A=1 --array 0-3%2
#SBATCH -n 1
echo
