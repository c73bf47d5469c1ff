package device

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/google/uuid"

	"fleetd/fleet/firmware"
)

// What a core and its edges exchange about downloads that edges send.
const (
	// DelegationHeader has a [firmware.Delegation] in the answer to an edge. The body is empty: the edge
	// sends the image to the device, with the other headers. The header must not reach the device.
	DelegationHeader = "Fleetd-Delegation"
	// ReportsPath is where an edge sends its [DownloadReports].
	ReportsPath = "downloads"
)

// DownloadReports is how far downloads have come that an edge sends.
type DownloadReports struct {
	Downloads []firmware.Progress `json:"downloads"`
}

// DownloadOrders is the answer to [DownloadReports]. Downloads that it does not name are recorded, and
// continue unless they have ended.
type DownloadOrders struct {
	Cut   []uuid.UUID `json:"cut,omitempty"`   // must not go on
	Again []uuid.UUID `json:"again,omitempty"` // not on record yet: report them again
}

// maxReports is the size of the body with reports of some 10,000 downloads.
const maxReports = 4 << 20

// ServeReports serves the reports of edges. edge returns the name of the one that sent the request.
func ServeReports(d *firmware.Downloads, edge func(ctx context.Context) string, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var reports DownloadReports
		name := edge(r.Context())
		if name == "" || r.Method != http.MethodPost {
			http.Error(w, "for the edges of the cluster", http.StatusForbidden)
			return
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReports)).Decode(&reports); err != nil {
			http.Error(w, "the request cannot be read", http.StatusBadRequest)
			return
		}
		var orders DownloadOrders
		for _, p := range reports.Downloads {
			goesOn, err := d.Report(r.Context(), name, p)
			switch {
			case err != nil:
				log.Warn("progress of a download not recorded; the edge reports it again", "edge", name, "err", err)
				orders.Again = append(orders.Again, p.ID)
			case !goesOn:
				orders.Cut = append(orders.Cut, p.ID)
			}
		}
		text, _ := json.Marshal(orders) // UUIDs only
		send(w, http.StatusOK, "application/json", text)
	})
}

// delegate answers an edge that can send the part itself, and reports whether it did.
func (h *Handler) delegate(w http.ResponseWriter, r *http.Request, t *firmware.Download, p part) (bool, error) {
	if h.o.ReadingEdge == nil {
		return false, nil
	}
	edge := h.o.ReadingEdge(r.Context())
	if edge == "" {
		return false, nil
	}
	to, ok, err := t.Delegate(r.Context(), edge, p.offset, p.length)
	if !ok || err != nil {
		return false, err
	}
	text, _ := json.Marshal(to) // texts and numbers only
	w.Header().Set(DelegationHeader, string(text))
	p.announce(w, t.Link, 0)
	return true, nil
}
