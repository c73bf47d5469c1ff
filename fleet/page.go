package fleet

// A Page is one page of a keyset-paged list.
type Page[T any] struct {
	Items []T
	// Next is the opaque cursor of the next page; "" on the last page.
	Next string
	// Prev is the cursor of the previous page; "" on the first page. Forward-only lists leave
	// it empty.
	Prev string
}

// Limits of every paged list.
const (
	DefaultLimit = 50
	MaxLimit     = 500
)

// ClampLimit limits a requested page size to the permitted range.
func ClampLimit(n int) int {
	if n <= 0 {
		return DefaultLimit
	}
	return min(n, MaxLimit)
}
