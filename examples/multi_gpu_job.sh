#!/bin/sh
#TGPU --name two-gpus --gpus 2 --time 10m
#
# A job with two GPUs that starts one worker per GPU.
#
#   tgpu run examples/multi_gpu_job.sh
#   tgpu run --gpus 4 examples/multi_gpu_job.sh      the command line overrides #TGPU

echo "GPUs of this job: ${CUDA_VISIBLE_DEVICES:-none}"
rank=0
for device in $(echo "${CUDA_VISIBLE_DEVICES:-}" | tr ',' ' '); do
    CUDA_VISIBLE_DEVICES="$device" sh -c '
        echo "worker '"$rank"' works on GPU $CUDA_VISIBLE_DEVICES"
        sleep 1
        echo "worker '"$rank"' is done"
    ' &
    rank=$((rank + 1))
done
wait
