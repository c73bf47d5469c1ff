package device

import (
	"net/http"
	"strconv"
	"strings"

	"fleetd/fleet/firmware"
)

// A part is the range of an image that a request wants.
type part struct {
	offset, length int64
	status         int
}

func whole(l firmware.Link) part { return part{0, l.Size, http.StatusOK} }

// partOf reads the request's Range header: one range of bytes, of the image that the client began
// with. It ignores an unreadable header and multiple ranges, as RFC 9110 allows; the response is
// then the whole image. ok is false if the range begins after the end of the image.
func partOf(r *http.Request, l firmware.Link) (p part, ok bool) {
	if condition := r.Header.Get("If-Range"); condition != "" && condition != etag(l) {
		return whole(l), true
	}
	spec, bytes := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !bytes || !dash {
		return whole(l), true
	}
	if first == "" {
		return suffix(l, last)
	}
	from, fromOK := position(first)
	to, toOK := l.Size-1, true
	if last != "" {
		to, toOK = position(last)
	}
	switch {
	case !fromOK || !toOK || last != "" && to < from:
		return whole(l), true
	case from >= l.Size:
		return part{}, false
	}
	return part{from, min(to, l.Size-1) - from + 1, http.StatusPartialContent}, true
}

// suffix returns the last n bytes.
func suffix(l firmware.Link, n string) (part, bool) {
	length, ok := position(n)
	switch {
	case !ok:
		return whole(l), true
	case length == 0:
		return part{}, false
	}
	length = min(length, l.Size)
	return part{l.Size - length, length, http.StatusPartialContent}, true
}

func position(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63) // accepts no sign
	return int64(n), err == nil
}

func etag(l firmware.Link) string { return `"` + l.Image + `"` }

// announce writes the headers, for a body of so many bytes. The length is always present: devices treat
// a body without one as empty.
func (p part) announce(w http.ResponseWriter, l firmware.Link, body int64) {
	format := func(n int64) string { return strconv.FormatInt(n, 10) }
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Length", format(body))
	header.Set("Accept-Ranges", "bytes")
	header.Set("ETag", etag(l))
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Content-Type-Options", "nosniff")
	if p.status == http.StatusPartialContent {
		header.Set("Content-Range", "bytes "+format(p.offset)+"-"+format(p.offset+p.length-1)+"/"+format(l.Size))
	}
	w.WriteHeader(p.status)
}
