#!/bin/sh
#TGPU --name sleep --gpus 1 --time 5m
#
# A minimal job: it holds one GPU for some seconds.
#
#   tgpu submit examples/sleep_job.sh        ten seconds
#   tgpu submit examples/sleep_job.sh 60     a minute

seconds="${1:-10}"
echo "job ${TGPU_JOB_ID:-none} holds GPU ${CUDA_VISIBLE_DEVICES:-none} for $seconds seconds"
sleep "$seconds"
echo "done"
