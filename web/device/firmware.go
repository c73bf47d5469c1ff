package device

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

const (
	// placeTimeout bounds how long a GET waits for a slot among the downloads: a stock device waits
	// 30 seconds for the headers.
	placeTimeout = 20 * time.Second
	// stallTimeout bounds how long a device may take to receive 32 KiB. A stock
	// device gives up after 30 seconds without a byte.
	stallTimeout = 30 * time.Second
)

// sendFirmware streams the image of a one-time link. Stock devices identify themselves by the link
// alone, and need status 200 with a length; other clients can resume.
func (h *Handler) sendFirmware(w http.ResponseWriter, r *http.Request) {
	if h.o.Downloads == nil {
		http.NotFound(w, r)
		return
	}
	// The request's deadline would end its context during the download. If there is a body, which
	// devices never send here, the deadline remains: net/http waits for the body.
	if r.ContentLength == 0 {
		http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	t, err := h.beginDownload(r)
	if err != nil {
		h.refuseFirmware(w, err)
		return
	}
	defer t.End()
	p, ok := partOf(r, t.Link)
	if !ok {
		w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(t.Link.Size, 10))
		sendText(w, http.StatusRequestedRangeNotSatisfiable, "the image has no such bytes")
		return
	}
	delegated, err := h.delegate(w, r, t, p)
	if delegated {
		return
	}
	var image io.ReadCloser
	if err == nil {
		image, err = t.Open(r.Context(), p.offset, p.length)
	}
	if err != nil {
		h.o.Log.Error("image not served", "device", t.Link.Device, "image", t.Link.Image, "err", err)
		sendText(w, http.StatusServiceUnavailable, "fleetd cannot serve this image right now")
		return
	}
	defer image.Close()
	p.announce(w, t.Link, p.length)
	h.streamFirmware(newDeviceWriter(t.Context(), w, r, h.stallTimeout), t, image)
}

func (h *Handler) beginDownload(r *http.Request) (*firmware.Download, error) {
	ctx, cancel := context.WithTimeout(r.Context(), h.placeTimeout)
	defer cancel()
	return h.o.Downloads.Begin(ctx, chi.URLParam(r, "token"))
}

// streamFirmware breaks the connection if the transfer was incomplete: a truncated image is
// useless, and the device must notice at once.
func (h *Handler) streamFirmware(w *deviceWriter, t *firmware.Download, image io.Reader) {
	err := t.Send(w, image)
	w.release()
	if err != nil {
		h.o.Log.Debug("download cut", "device", t.Link.Device, "deployment", t.Link.Deployment, "err", err)
		w.discard()
		panic(http.ErrAbortHandler)
	}
}

// describeFirmware responds to a HEAD request, which does not use up the link.
func (h *Handler) describeFirmware(w http.ResponseWriter, r *http.Request) {
	if h.o.Downloads == nil {
		http.NotFound(w, r)
		return
	}
	l, err := h.o.Downloads.Link(r.Context(), chi.URLParam(r, "token"))
	if err != nil {
		h.refuseFirmware(w, err)
		return
	}
	whole(l).announce(w, l, l.Size)
}

// refuseFirmware sends the same response for unknown, used, expired and revoked links.
func (h *Handler) refuseFirmware(w http.ResponseWriter, err error) {
	if errors.Is(err, fleet.ErrNotFound) {
		sendText(w, http.StatusNotFound, "this link is not good, or not any more")
		return
	}
	if !errors.Is(err, fleet.ErrUnavailable) {
		h.o.Log.Error("firmware not served", "err", err)
	}
	w.Header().Set("Retry-After", "10")
	sendText(w, http.StatusServiceUnavailable, "fleetd cannot serve another download right now")
}
