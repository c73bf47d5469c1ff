package device

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/netip"
	"strings"

	"github.com/go-chi/httprate"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/fleet/redact"
	"fleetd/web/i18n"
)

// Limits of pictures that cameras send.
const (
	maxVisionUpload = picture.MaxPhotoBytes + picture.MaxQuestionBytes + 64<<10 // with the form around them
	maxVisionParts  = 8
	photosPerMinute = 20 // of one device
	photosAtOnce    = 64 // each is in memory once, or twice if it is forwarded

	// badTokensPerMinute bounds the bad tokens of one address, like the polls of unknown devices.
	badTokensPerMinute = 60
	// maxVisionAnswer is less than the 8 KiB at which a board hangs (protocol 1.6).
	maxVisionAnswer = 7 << 10
)

// VisionTokens is the part of [picture.VisionTokens] that the handler uses.
type VisionTokens interface {
	Check(device fleet.DeviceID, token string) error
}

// An Explainer answers questions about pictures.
type Explainer interface {
	// Explain returns the JSON for the device, unchanged: an object with success, action and
	// response, or with success and message. nil without an error means that no service is
	// configured. clientID is the device's Client-Id.
	Explain(ctx context.Context, p picture.Photo, clientID string) (answer []byte, err error)
}

// A visionAnswer is the text that a device's camera tool returns.
type visionAnswer struct {
	Success  bool   `json:"success"`
	Action   string `json:"action,omitempty"`
	Response string `json:"response,omitempty"`
	Message  string `json:"message,omitempty"`
}

// explain receives the picture that a camera took for a question, stores it with the call that runs
// on the device, and responds with the answer.
func (h *Handler) explain(w http.ResponseWriter, r *http.Request) {
	id, err := fleet.ParseBoardID(r.Header.Get("Device-Id"))
	if err != nil {
		h.refusePhoto(w, r, err)
		return
	}
	if err := h.admitCamera(w, r, id); err != nil {
		h.refusePhoto(w, r, err)
		return
	}
	select {
	case h.photos <- struct{}{}:
		defer func() { <-h.photos }()
	default:
		h.refusePhoto(w, r, fleet.Refuse(fleet.ErrUnavailable, "vision_busy"))
		return
	}
	photo, err := h.readPhoto(w, r, id)
	if err != nil {
		h.refusePhoto(w, r, err)
		return
	}
	h.o.Log.Info("photo received", "device", id, "call", photo.Snapshot.Call, "bytes", len(photo.Data))
	answer, err := h.answerPhoto(r.Context(), photo, r.Header.Get("Client-Id"))
	if err != nil {
		h.refusePhoto(w, r, err)
		return
	}
	send(w, http.StatusOK, "application/json", answer)
}

// admitCamera returns nil if the device may send a picture now. The error for a bad token does not
// reveal whether the device exists.
func (h *Handler) admitCamera(w http.ResponseWriter, r *http.Request, id fleet.DeviceID) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	err := h.o.VisionTokens.Check(id, strings.TrimSpace(token))
	if !strings.EqualFold(scheme, "Bearer") || err == nil && !h.o.Enrolments.Known(id) {
		err = fleet.Refuse(fleet.ErrForbidden, "invalid_vision_token")
	}
	if err != nil {
		addr := remoteAddr(r)
		if ip, parsed := netip.ParseAddr(addr); parsed == nil && !ip.IsLoopback() &&
			h.badTokens.OnLimit(w, r, httprate.CanonicalizeIP(addr)) {
			return fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.token")
		}
		return err
	}
	if h.cameras.OnLimit(w, r, string(id)) {
		return fleet.Refuse(fleet.ErrTooMany, "too_many_photos", "limit", photosPerMinute)
	}
	return nil
}

// readPhoto reads the form and stores its picture.
func (h *Handler) readPhoto(w http.ResponseWriter, r *http.Request, id fleet.DeviceID) (picture.Photo, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxVisionUpload)
	form, err := r.MultipartReader()
	if err != nil {
		return picture.Photo{}, fleet.Refuse(fleet.ErrInvalid, "not_multipart")
	}
	question := ""
	for range maxVisionParts {
		part, err := form.NextPart()
		if err != nil {
			return picture.Photo{}, partError(err)
		}
		switch part.FormName() {
		case "question": // boards send it first
			if question, err = readQuestion(part); err != nil {
				return picture.Photo{}, err
			}
			question = redact.Text(question, strings.TrimSpace(r.Header.Get("Client-Id")))
		case "file":
			return h.o.Snapshots.Photo(r.Context(), id, question, uploadPart{part})
		}
	}
	return picture.Photo{}, partError(io.EOF)
}

func readQuestion(part *multipart.Part) (string, error) {
	text, err := io.ReadAll(io.LimitReader(uploadPart{part}, picture.MaxQuestionBytes+1))
	if err != nil {
		return "", err
	}
	if len(text) > picture.MaxQuestionBytes {
		return "", fleet.Refuse(fleet.ErrInvalid, "too_large.question", "limit", picture.MaxQuestionBytes)
	}
	return string(text), nil
}

// answerPhoto gets the answer from the configured service. Without one, the caller gets the picture
// and looks at it.
func (h *Handler) answerPhoto(ctx context.Context, p picture.Photo, clientID string) ([]byte, error) {
	if h.o.Explainer != nil {
		answer, err := h.o.Explainer.Explain(ctx, p, fleet.CleanText(clientID, 100))
		if err != nil || answer != nil {
			return answer, err
		}
	}
	key, args := "vision.kept", []any{"call", p.Snapshot.Call}
	if p.Snapshot.Call == uuid.Nil {
		key, args = "vision.kept_alone", []any{"snapshot", p.Snapshot.ID}
	}
	return json.Marshal(visionAnswer{Success: true, Action: "RESPONSE", Response: i18n.Text(i18n.English, key, args...)})
}

// visionStatus maps error codes to the statuses that differ from the status of their kind.
var visionStatus = map[string]int{
	"invalid_vision_token": http.StatusUnauthorized,
	"too_large":            http.StatusRequestEntityTooLarge,
	"unsupported_picture":  http.StatusUnsupportedMediaType,
	"vision_failed":        http.StatusBadGateway,
}

// refusePhoto responds with the error, and with its reason unless it is internal.
func (h *Handler) refusePhoto(w http.ResponseWriter, r *http.Request, err error) {
	device := fleet.CleanText(r.Header.Get("Device-Id"), 40)
	refused, ok := errors.AsType[*fleet.Error](err)
	if !ok {
		if r.Context().Err() == nil {
			h.o.Log.Error("photo not taken", "device", device, "err", err)
		}
		refused = fleet.Refuse(fleet.ErrUnavailable, "unavailable")
	} else {
		h.o.Log.Info("photo not taken", "device", device, "err", err)
	}
	status := visionStatus[refused.Code]
	switch {
	case status != 0:
	case errors.Is(refused, fleet.ErrTooMany):
		status = http.StatusTooManyRequests
	case errors.Is(refused, fleet.ErrUnavailable):
		status = http.StatusServiceUnavailable
	default:
		status = http.StatusBadRequest
	}
	body, _ := json.Marshal(visionAnswer{Message: i18n.ErrorDetail(refused)}) // strings only
	send(w, status, "application/json", body)
}
