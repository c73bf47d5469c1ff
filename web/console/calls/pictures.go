package calls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// pictureTypes are the types that may be served as a picture. Others, above all SVG, could run
// scripts with the console's origin.
var pictureTypes = []string{"image/jpeg", "image/png", "image/gif", "image/webp"}

// Snapshot returns a picture as pages show it.
func Snapshot(s picture.Snapshot) ui.Snapshot {
	view := ui.Snapshot{ID: s.ID.String(), URL: ui.SnapshotPath(s.ID.String()), At: s.CreatedAt, Width: s.Width,
		Height: s.Height, Bytes: s.Size, Camera: s.Kind == picture.SnapshotCamera, Question: s.Question, Device: s.Device}
	if s.Call != uuid.Nil {
		view.CallID = s.Call.String()
	}
	return view
}

func (s *Server) sendSnapshot(w http.ResponseWriter, r *http.Request) {
	id, err := uuid.Parse(chi.URLParam(r, "snapshot"))
	if err != nil {
		s.Fail(w, r, pages.ErrNoPage)
		return
	}
	shot, data, err := s.Snapshots.Picture(r.Context(), id)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	if r.URL.Query().Get("download") != "" {
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", fileName(shot)))
	}
	sendPicture(w, r, shot.MediaType, data, shot.Blob)
}

// fileName returns the name for a picture that is stored as a file. Ids of devices are safe in names of
// files.
func fileName(s picture.Snapshot) string {
	ending := ".jpg"
	if s.MediaType == "image/png" {
		ending = ".png"
	}
	return fmt.Sprintf("%s-%s-%s%s", s.Device, s.Kind, s.CreatedAt.UTC().Format("20060102T150405Z"), ending)
}

// callImage decodes the n-th piece of a result, if it is a picture.
func callImage(c fleet.Call, n string) ([]byte, bool) {
	result := c.Result
	if len(result) == 0 && c.Late != nil {
		result = c.Late.Result
	}
	var r struct {
		Content []struct {
			Type string
			Data []byte // encoding/json decodes the base64
		}
	}
	i, err := strconv.Atoi(n)
	if err != nil || json.Unmarshal(result, &r) != nil || i < 0 || i >= len(r.Content) || r.Content[i].Type != "image" {
		return nil, false
	}
	data := r.Content[i].Data
	return data, slices.Contains(pictureTypes, http.DetectContentType(data))
}

// sendPicture serves foreign bytes strictly as a picture of the given type.
func sendPicture(w http.ResponseWriter, r *http.Request, mediaType string, data []byte, tag string) {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if h.Get("Content-Disposition") == "" {
		h.Set("Content-Disposition", "inline")
	}
	h.Set("Cache-Control", "private, max-age=86400, immutable")
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}
