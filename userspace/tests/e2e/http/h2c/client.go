// Calls /test.Echo/Stream at an address under a name, with messages that are bytes.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
)

type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v interface{}) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "raw" }

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	connection, err := grpc.DialContext(ctx, os.Args[1], grpc.WithInsecure(), grpc.WithAuthority(os.Args[2]),
		grpc.WithBlock(), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(8<<20)))
	must(err)
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(ctx, description, "/test.Echo/Stream")
	must(err)
	for _, size := range []int{1, 50000, 7, 1000000, 300000} {
		message, answer := make([]byte, size), []byte{}
		_, err = rand.Read(message)
		must(err)
		must(stream.SendMsg(&message))
		must(stream.RecvMsg(&answer))
		if !bytes.Equal(answer, append([]byte("east-1:"), message...)) {
			must(fmt.Errorf("%d bytes for %d", len(answer), size))
		}
	}
	must(stream.CloseSend())
	if err := stream.RecvMsg(&[]byte{}); err != io.EOF {
		must(fmt.Errorf("not the end: %v", err))
	}
	fmt.Println("all there")
}
