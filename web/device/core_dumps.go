package device

import (
	"io"
	"mime/multipart"
	"net/http"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// maxCoreDump bounds a core dump and the multipart form around it.
const maxCoreDump = telemetry.MaxCoreDumpBytes + 16<<10

func (h *Handler) receiveCoreDump(w http.ResponseWriter, r *http.Request) error {
	c, err := h.o.CoreDumps.Receive(r.Context(), chi.URLParam(r, "token"), func() (io.Reader, error) {
		r.Body = http.MaxBytesReader(w, r.Body, maxCoreDump)
		return onlyFile(r)
	})
	if err == nil {
		h.o.Log.Info("core dump received", "device", c.Device, "call", c.Call, "bytes", c.Size)
	}
	return err
}

// onlyFile reads a form of one part, named file. It refuses any other form, because the bytes
// themselves do not show whether they are a core dump.
func onlyFile(r *http.Request) (io.Reader, error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, fleet.Refuse(fleet.ErrInvalid, "not_multipart")
	}
	part, err := form.NextPart()
	if err != nil {
		return nil, partError(err)
	}
	if part.FormName() != "file" {
		return nil, partError(io.EOF)
	}
	return &lastPart{form, uploadPart{part}}, nil
}

// lastPart ends with the form: a further part is an error.
type lastPart struct {
	form *multipart.Reader
	uploadPart
}

func (p *lastPart) Read(b []byte) (int, error) {
	n, err := p.uploadPart.Read(b)
	if err != io.EOF {
		return n, err
	}
	switch _, next := p.form.NextPart(); next {
	case io.EOF:
		return n, io.EOF
	case nil:
		return n, fleet.Refuse(fleet.ErrInvalid, "too_many_parts")
	default:
		return n, partError(next)
	}
}
