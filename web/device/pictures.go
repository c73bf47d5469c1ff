package device

import (
	"errors"
	"io"
	"mime/multipart"
	"net/http"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/web/i18n"
)

// maxUpload bounds a picture and the multipart form around it.
const maxUpload = picture.MaxSnapshotBytes + 64<<10

// receiveUpload accepts a device's upload for a call: a picture or a core dump, depending on the
// link. The device reads the response to its end and discards it; only status 200 means success.
func (h *Handler) receiveUpload(w http.ResponseWriter, r *http.Request) {
	err := h.receiveSnapshot(w, r)
	if picture.DeadLink(err) && h.o.CoreDumps != nil {
		err = h.receiveCoreDump(w, r)
	}
	if err != nil {
		h.refuseUpload(w, "upload not taken", err)
		return
	}
	send(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

func (h *Handler) receiveSnapshot(w http.ResponseWriter, r *http.Request) error {
	shot, err := h.o.Snapshots.Receive(r.Context(), chi.URLParam(r, "token"), func() (io.Reader, error) {
		r.Body = http.MaxBytesReader(w, r.Body, maxUpload)
		return filePart(r)
	})
	if err == nil {
		h.o.Log.Info("snapshot received", "device", shot.Device, "call", shot.Call, "bytes", shot.Size)
	}
	return err
}

// filePart finds the part named file among the first few parts of the form.
func filePart(r *http.Request) (io.Reader, error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, fleet.Refuse(fleet.ErrInvalid, "not_multipart")
	}
	for range 8 {
		part, err := form.NextPart()
		if err != nil {
			return nil, partError(err)
		}
		if part.FormName() == "file" {
			return uploadPart{part}, nil
		}
	}
	return nil, partError(io.EOF)
}

func partError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return fleet.Refuse(fleet.ErrInvalid, "too_large.upload", "limit", tooLarge.Limit)
	}
	return fleet.Refuse(fleet.ErrInvalid, "broken_upload.no_file")
}

// uploadPart distinguishes a body that is too large from one that breaks off.
type uploadPart struct{ part *multipart.Part }

func (p uploadPart) Read(b []byte) (int, error) {
	n, err := p.part.Read(b)
	if err != nil && err != io.EOF {
		err = partError(err)
	}
	return n, err
}

// sendPreview sends the device the picture that a call orders it to show.
func (h *Handler) sendPreview(w http.ResponseWriter, r *http.Request) {
	picture, err := h.o.Snapshots.FetchPreview(r.Context(), chi.URLParam(r, "token"))
	if err != nil {
		h.refuseUpload(w, "preview not sent", err)
		return
	}
	send(w, http.StatusOK, "image/jpeg", picture)
}

// uploadStatus maps error codes to the statuses that differ from the status of their kind.
var uploadStatus = map[string]int{
	"too_large":           http.StatusRequestEntityTooLarge,
	"unsupported_picture": http.StatusUnsupportedMediaType,
	"dead_link":           http.StatusForbidden,
}

// refuseUpload responds to a failed exchange. It logs internal errors and does not explain them to
// the device.
func (h *Handler) refuseUpload(w http.ResponseWriter, what string, err error) {
	var refused *fleet.Error
	if !errors.As(err, &refused) || !errors.Is(err, fleet.ErrInvalid) && !errors.Is(err, fleet.ErrForbidden) {
		h.o.Log.Error(what, "err", err)
		sendText(w, http.StatusServiceUnavailable, "fleetd cannot exchange files right now")
		return
	}
	h.o.Log.Info(what, "err", err)
	status := uploadStatus[refused.Code]
	if status == 0 {
		status = http.StatusBadRequest
	}
	sendText(w, status, i18n.ErrorDetail(refused))
}

func sendText(w http.ResponseWriter, status int, message string) {
	send(w, status, "text/plain; charset=utf-8", []byte(message+"\n"))
}
