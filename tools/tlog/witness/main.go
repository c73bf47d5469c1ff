// Command witness is a witness of C2SP tlog-witness for one log, in memory, for tests. It is made of the parts of
// transparency-dev's omniwitness, and of nothing of fleetd's.
//
//	witness KEY-OF-THE-LOG
//
// prints its public key and its address, and serves until its input ends.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/witness/persistence/inmemory"
	"github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/note"
)

func main() {
	ofLog, err := note.NewVerifier(os.Args[1])
	check(err)
	secret, public, err := note.GenerateKey(rand.Reader, "witness.example/w1")
	check(err)
	signer, err := f_note.NewSignerForCosignatureV1(secret)
	check(err)
	key, err := f_note.VKeyToCosignatureV1(public)
	check(err)
	w, err := witness.New(context.Background(), witness.Opts{Persistence: inmemory.New(), Signers: []note.Signer{signer},
		VerifierForLog: func(_ context.Context, origin string) (note.Verifier, bool, error) {
			return ofLog, origin == ofLog.Name(), nil
		}})
	check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	http.HandleFunc("POST /add-checkpoint", witness.NewHTTPHandler(w).AddCheckpoint)
	go func() { check(http.Serve(listener, nil)) }()
	fmt.Printf("%s http://%s\n", key, listener.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
