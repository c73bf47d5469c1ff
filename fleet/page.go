package fleet

// A Page is one stretch of a keyset-paged list.
type Page[T any] struct {
	Items []T
	// Next is the opaque cursor of the following page; "" on the last one.
	Next string
	// Prev is the cursor of the page before; "" on the first one. Lists that
	// are only walked forward leave it empty.
	Prev string
}

// Limits of every paged list.
const (
	DefaultLimit = 50
	MaxLimit     = 500
)

// ClampLimit turns a wished page size into a permitted one.
func ClampLimit(n int) int {
	if n <= 0 {
		return DefaultLimit
	}
	return min(n, MaxLimit)
}
