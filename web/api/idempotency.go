package api

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"

	"fleetd/fleet"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"
	maxKey         = 255
)

// once runs a request with an Idempotency-Key at most once. It stores the response and returns it
// again.
//
// Only a refusal (4xx) frees the key, because it has no effect. A failure (5xx) may have had an
// effect, which a repetition must not repeat.
func (a *api) once(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get(keyHeader)
		if key == "" {
			next.ServeHTTP(w, r)
			return
		}
		if p := a.onceUnder(key, w, r, next); p != nil {
			p.write(w)
		}
	})
}

func (a *api) onceUnder(key string, w http.ResponseWriter, r *http.Request, next http.Handler) *problem {
	if len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < '!' || c > '~' }) {
		return refused(http.StatusUnprocessableEntity,
			fleet.Refuse(fleet.ErrInvalid, "invalid_idempotency_key", "limit", maxKey).At("header."+keyHeader))
	}
	who := principalOf(r.Context())
	seal := newSealer(who.secret)
	saved, err := a.Idempotency.BeginIdempotent(r.Context(), who.actor.ID, key, seal.requestHash(r))
	if err != nil {
		return a.keyProblem(r.Context(), err)
	}
	if saved != nil {
		return a.replay(w, r, seal, saved)
	}
	kept := &keptAnswer{ResponseWriter: w}
	next.ServeHTTP(kept, r)
	a.keep(context.WithoutCancel(r.Context()), who.actor.ID, key, seal, kept)
	return nil
}

func (a *api) keyProblem(ctx context.Context, err error) *problem {
	p := a.problemOf(ctx, err, "", "")
	switch p.Code {
	case "idempotency_key_reused":
		p.Status, p.Title = http.StatusUnprocessableEntity, http.StatusText(http.StatusUnprocessableEntity)
	case "request_in_progress":
		p.retryAfter = 1
	}
	return p
}

// keep stores the response before the client receives it.
func (a *api) keep(ctx context.Context, actor, key string, seal sealer, k *keptAnswer) {
	var err error
	if k.status >= 400 && k.status < 500 {
		err = a.Idempotency.AbandonIdempotent(ctx, actor, key)
	} else {
		err = a.Idempotency.SaveIdempotent(ctx, actor, key, fleet.SavedResponse{Status: k.status,
			Body: seal.close(k.saved())})
	}
	if err != nil {
		a.Log.Error("response to a request with an Idempotency-Key not stored", "actor", actor, "err", err)
	}
	k.send()
}

func (a *api) replay(w http.ResponseWriter, r *http.Request, seal sealer, saved *fleet.SavedResponse) *problem {
	var s savedAnswer
	data, err := seal.open(saved.Body)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return a.problemOf(r.Context(), err, "", "")
	}
	maps.Copy(w.Header(), s.Header)
	w.Header().Set(replayedHeader, "true")
	w.WriteHeader(saved.Status)
	_, _ = w.Write(s.Body) // the client may have gone
	return nil
}

// savedAnswer is the stored part of a response besides its status.
type savedAnswer struct {
	Header http.Header
	Body   []byte
}

// keptAnswer buffers a response until it is stored.
type keptAnswer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
}

func (k *keptAnswer) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}

func (k *keptAnswer) saved() []byte {
	s := savedAnswer{Header: http.Header{}, Body: k.body.Bytes()}
	for _, name := range []string{"Content-Type", "Location", "Preference-Applied", "Retry-After"} {
		if v := k.Header().Values(name); len(v) > 0 {
			s.Header[name] = v
		}
	}
	data, _ := json.Marshal(s) // strings and bytes always marshal
	return data
}

func (k *keptAnswer) send() {
	k.WriteHeader(http.StatusOK)
	k.ResponseWriter.WriteHeader(k.status)
	_, _ = k.ResponseWriter.Write(k.body.Bytes())
}

// A sealer encrypts stored responses and fingerprints requests. Its keys derive from the token's
// secret, which is not in the database: a response may contain a new token, and a request a
// password.
type sealer struct{ secret []byte }

func newSealer(secret string) sealer { return sealer{[]byte(secret)} }

func (s sealer) key(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, s.secret, nil, "fleetd idempotency "+purpose, sha256.Size)
	if err != nil {
		panic(err) // the length is a constant
	}
	return key
}

func (s sealer) requestHash(r *http.Request) []byte {
	mac := hmac.New(sha256.New, s.key("request"))
	for _, part := range []string{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"),
		strings.Join(r.Header.Values("Prefer"), ",")} {
		mac.Write([]byte(part + "\x00"))
	}
	if body, ok := r.Body.(*bufferedBody); ok {
		mac.Write(body.data)
	}
	mac.Write(pictureIn(r.Context()))
	return mac.Sum(nil)
}

func (s sealer) aead() cipher.AEAD {
	block, err := aes.NewCipher(s.key("answer"))
	if err != nil {
		panic(err) // the length is a constant
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the right block size
	}
	return gcm
}

func (s sealer) close(answer []byte) []byte { return s.aead().Seal(nil, nil, answer, nil) }

func (s sealer) open(sealed []byte) ([]byte, error) {
	answer, err := s.aead().Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, errors.New("the stored response cannot be decrypted: it was stored for another token")
	}
	return answer, nil
}
