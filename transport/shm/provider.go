package shm

const name = "shm"
