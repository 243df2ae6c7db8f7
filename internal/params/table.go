package params

// Table lists every tunable. gorun -info prints it.
var Table = []Param{
	{Key: "transport.use", Kind: List, Default: "tcp", Choices: []string{"tcp"},
		Help: "transports in order of preference; each pair of ranks takes the first that reaches"},
	{Key: "transport.tcp.interface", Kind: String, Default: "",
		Help: "network interface, address or subnet that tcp listens on; empty: loopback within one host, else the first routable"},
	{Key: "transport.tcp.poll", Kind: Duration, Default: "50us",
		Help: "how long a waiting goroutine polls before it yields and then sleeps"},
	{Key: "transport.tcp.connect_timeout", Kind: Duration, Default: "30s",
		Help: "how long a connection may take to be made and authenticated"},
	{Key: "engine.eager_limit", Kind: Bytes, Default: "0", Unit: "bytes",
		Help: "messages up to this size go at once, larger ones by rendezvous; 0: what the transport advises"},
	{Key: "engine.unexpected_limit", Kind: Bytes, Default: "64m", Unit: "bytes",
		Help: "memory that messages nobody has asked for yet may take in one rank, shared out among its peers as credits"},
	{Key: "engine.async_progress", Kind: Bool, Default: "true",
		Help: "move transfers on while the program computes"},
	{Key: "coll.barrier.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Barrier"},
	{Key: "coll.bcast.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Bcast"},
	{Key: "coll.reduce.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Reduce"},
	{Key: "coll.allreduce.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Allreduce"},
	{Key: "coll.gather.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Gather and Gatherv"},
	{Key: "coll.scatter.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Scatter and Scatterv"},
	{Key: "coll.allgather.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Allgather and Allgatherv"},
	{Key: "coll.alltoall.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Alltoall and Alltoallv"},
	{Key: "coll.reduce_scatter.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of ReduceScatter and ReduceScatterBlock"},
	{Key: "coll.scan.algorithm", Kind: String, Default: "auto", Help: "forces the algorithm of Scan and Exscan"},
}
