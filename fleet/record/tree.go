package record

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// TileHeight is the height of tiles: a full one has 256 hashes.
const TileHeight = 8

// TileWidth is the number of hashes in a full tile.
const TileWidth = 1 << TileHeight

// A Tile is a full tile of the tree.
type Tile struct {
	Level  int
	N      int64
	Hashes []byte
}

// An Edge is the right edge of the tree: the size, and the partial tile of each level. The zero value is the
// empty tree. It is sufficient to append leaves and to compute the root.
type Edge struct {
	Size  int64
	tiles [][]tlog.Hash // by level; fewer than TileWidth hashes each
}

// NewEdge returns the edge of a tree from its partial tiles.
func NewEdge(size int64, tiles [][]tlog.Hash) (*Edge, error) {
	e := &Edge{Size: size, tiles: tiles}
	for level, n := 0, size; level < len(tiles) || n > 0; level, n = level+1, n/TileWidth {
		if have := len(e.level(level)); int64(have) != n%TileWidth {
			return nil, fmt.Errorf("the partial tile of level %d has %d hashes, and a tree of %d entries needs %d", level,
				have, size, n%TileWidth)
		}
	}
	return e, nil
}

func (e *Edge) level(n int) []tlog.Hash {
	if n < len(e.tiles) {
		return e.tiles[n]
	}
	return nil
}

// Clone returns a copy that can be changed alone.
func (e *Edge) Clone() *Edge {
	c := &Edge{Size: e.Size, tiles: make([][]tlog.Hash, len(e.tiles))}
	for i, t := range e.tiles {
		c.tiles[i] = append(make([]tlog.Hash, 0, TileWidth), t...)
	}
	return c
}

// Append appends a leaf, and calls full for each tile that it completes.
func (e *Edge) Append(leaf tlog.Hash, full func(Tile)) {
	e.Size++
	h := leaf
	for level, n := 0, e.Size; ; level, n = level+1, n/TileWidth {
		if level == len(e.tiles) {
			e.tiles = append(e.tiles, make([]tlog.Hash, 0, TileWidth))
		}
		e.tiles[level] = append(e.tiles[level], h)
		if len(e.tiles[level]) < TileWidth {
			return
		}
		t := Tile{Level: level, N: n/TileWidth - 1, Hashes: flatten(e.tiles[level])}
		full(t)
		h = Fold(e.tiles[level])
		e.tiles[level] = e.tiles[level][:0]
	}
}

// Root returns the root of the tree.
func (e *Edge) Root() (tlog.Hash, error) { return tlog.TreeHash(e.Size, e) }

// ReadHashes implements [tlog.HashReader] for the hashes of the right edge.
func (e *Edge) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		t := tlog.TileForIndex(TileHeight, index)
		have := e.level(t.L)
		if t.N != e.Size>>(TileHeight*(t.L+1)) || t.W > len(have) {
			return nil, fmt.Errorf("hash %d is not on the edge of a tree of %d entries", index, e.Size)
		}
		h, err := tlog.HashFromTile(t, flatten(have[:t.W]), index)
		if err != nil {
			return nil, err
		}
		out[i] = h
	}
	return out, nil
}

// Fold returns the root of a tree whose number of leaves is a power of two.
func Fold(leaves []tlog.Hash) tlog.Hash {
	level := append(make([]tlog.Hash, 0, len(leaves)), leaves...)
	for len(level) > 1 {
		for i := 0; i < len(level); i += 2 {
			level[i/2] = tlog.NodeHash(level[i], level[i+1])
		}
		level = level[:len(level)/2]
	}
	return level[0]
}

func flatten(hashes []tlog.Hash) []byte {
	b := make([]byte, 0, len(hashes)*tlog.HashSize)
	for _, h := range hashes {
		b = append(b, h[:]...)
	}
	return b
}

// Unflatten returns the hashes in b.
func Unflatten(b []byte) ([]tlog.Hash, error) {
	if len(b)%tlog.HashSize != 0 {
		return nil, fmt.Errorf("%d bytes are no hashes", len(b))
	}
	out := make([]tlog.Hash, len(b)/tlog.HashSize)
	for i := range out {
		out[i] = tlog.Hash(b[i*tlog.HashSize:])
	}
	return out, nil
}

// TilePath returns the path of a tile in tlog-tiles, or of the bundle with the entries of a tile of level 0.
func TilePath(t tlog.Tile, entries bool) string {
	// Package tlog's paths also have the height: tile/8/0/001.
	path := strings.TrimPrefix(t.Path(), fmt.Sprintf("tile/%d/", TileHeight))
	if entries {
		path = "entries/" + strings.TrimPrefix(path, "0/")
	}
	return "tile/" + path
}
