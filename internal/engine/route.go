package engine

// Transport is the provider's name of the transport that leads to a world rank;
// empty for this rank itself, whose messages take none, and for ranks that
// there are not.
func (e *Engine) Transport(rank int) string {
	if rank < 0 || rank >= e.size || rank == e.rank {
		return ""
	}
	return e.peers[rank].rail.attr.Provider // set by New for good
}
