package mpi

import (
	"cmp"
	"slices"
)

// Orders of ranks for topologies
//
// gridOrder and graphOrder return the rank in the new communicator of each rank in the old one.
// hosts has the host of each old rank. All ranks compute the same order, because they pass the same
// arguments.

// gridOrder returns the order for a grid. If all hosts have equally many ranks, and blocks of this
// number of ranks can tile the grid, each host gets one block. Of the possible shapes of a block,
// gridOrder takes the one with the fewest edges between blocks. Otherwise the ranks of a host
// follow each other in row-major order.
func gridOrder(hosts, dims []int, periodic []bool) []int {
	byHost := ranksByHost(hosts)
	order := make([]int, len(hosts))
	block := bestBlock(byHost, dims, periodic)
	if block == nil {
		next := 0
		for _, ranks := range byHost {
			for _, r := range ranks {
				order[r] = next
				next++
			}
		}
		return order
	}
	tiles := make([]int, len(dims)) // number of blocks per dimension
	for d := range dims {
		tiles[d] = dims[d] / block[d]
	}
	for h, ranks := range byHost {
		for i, r := range ranks {
			tile, at, rank := coordsIn(tiles, h), coordsIn(block, i), 0
			for d := range dims {
				rank = rank*dims[d] + tile[d]*block[d] + at[d]
			}
			order[r] = rank
		}
	}
	return order
}

// ranksByHost returns the ranks of each host. The hosts are in the order of their lowest ranks.
func ranksByHost(hosts []int) (byHost [][]int) {
	index := map[int]int{}
	for r, h := range hosts {
		i, ok := index[h]
		if !ok {
			i = len(byHost)
			index[h] = i
			byHost = append(byHost, nil)
		}
		byHost[i] = append(byHost[i], r)
	}
	return byHost
}

// coordsIn returns the coordinates of element i of an array in row-major order.
func coordsIn(dims []int, i int) []int {
	coords := make([]int, len(dims))
	for d := len(dims) - 1; d >= 0; d-- {
		coords[d] = i % dims[d]
		i /= dims[d]
	}
	return coords
}

// bestBlock returns the dimensions of the block that each host gets, or nil if there is no such
// block.
func bestBlock(byHost [][]int, dims []int, periodic []bool) []int {
	n := len(byHost[0])
	for _, ranks := range byHost {
		if len(ranks) != n {
			return nil
		}
	}
	var best []int
	least, total := 0, n*len(byHost)
	block := make([]int, len(dims))
	var try func(d, left int)
	try = func(d, left int) {
		if d == len(dims) {
			if left != 1 {
				return
			}
			cut := 0 // edges of the grid between blocks
			for d, b := range block {
				borders := dims[d]/b - 1
				if periodic[d] && borders > 0 {
					borders++
				}
				cut += borders * (total / dims[d])
			}
			if best == nil || cut < least {
				best, least = slices.Clone(block), cut
			}
			return
		}
		for b := 1; b <= min(left, dims[d]); b++ {
			if left%b == 0 && dims[d]%b == 0 {
				block[d] = b
				try(d+1, left/b)
			}
		}
	}
	try(0, n)
	return best
}

// graphOrder returns the order for a graph. It fills the ranks of each host with vertices, one
// after the other. Each time it takes the vertex with the greatest weight of edges to the vertices
// that are already on the host. Of several such vertices, it takes the one with the least weight of
// all its edges, and of those the lowest.
func graphOrder(hosts []int, edges []Edge) []int {
	n := len(hosts)
	type link struct{ to, weight int }
	links := make([][]link, n)
	for _, e := range edges {
		if e.From != e.To {
			links[e.From] = append(links[e.From], link{e.To, e.Weight})
			links[e.To] = append(links[e.To], link{e.From, e.Weight})
		}
	}
	order, placed, gain, total := make([]int, n), make([]bool, n), make([]int, n), make([]int, n)
	for v := range links {
		for _, l := range links[v] {
			total[v] += l.weight
		}
	}
	for _, ranks := range ranksByHost(hosts) {
		clear(gain)
		here := make([]int, 0, len(ranks))
		for range ranks {
			best := -1
			for v := range n {
				if !placed[v] && (best < 0 || gain[v] > gain[best] || gain[v] == gain[best] && total[v] < total[best]) {
					best = v
				}
			}
			placed[best] = true
			here = append(here, best)
			for _, l := range links[best] {
				gain[l.to] += l.weight
			}
		}
		// In ascending order, vertices that need not move keep their process.
		slices.SortFunc(here, cmp.Compare[int])
		for i, r := range ranks {
			order[r] = here[i]
		}
	}
	return order
}
