#!/bin/bash
# Two machines with eight GPUs each train one model under SLURM: sbatch examples/training-job.sh
# Two minutes before the time is up, or when it has to make room, the training saves, and the job goes back into the queue.
#SBATCH --job-name=films
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

run=runs/films # on a file system that all machines see
if [ -e "$run/plan.toml" ]; then
    srun vitrail train --resume "$run"
else
    srun vitrail train films.csv --group patient --model vit_base_patch16_224 --epochs 100 --out "$run"
fi
code=$?
if [ "$code" -eq 143 ]; then # stopped and saved
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
