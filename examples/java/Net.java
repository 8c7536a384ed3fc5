// A model compiled by Burnish, called from Java 22 or newer by the foreign-function interface of the platform.
//
//   burnish export net.onnx --c net
//   java --enable-native-access=ALL-UNNAMED examples/java/Net.java net/libnet.so net
//
// Fills every input with 0.5, runs the model, and prints the bytes and first floats of every output.

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;

public final class Net implements AutoCloseable {
    private static final Linker LINKER = Linker.nativeLinker();
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final MemoryLayout POINTER = ValueLayout.ADDRESS;

    private final SymbolLookup library;
    private final String name;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment context;

    public Net(Path file, String name, int threads) throws Throwable {
        this.library = SymbolLookup.libraryLookup(file, Arena.global());
        this.name = name;
        MemorySegment place = arena.allocate(ValueLayout.ADDRESS);
        check((int) function("create", FunctionDescriptor.of(INT, INT, POINTER)).invoke(threads, place));
        this.context = place.get(ValueLayout.ADDRESS, 0);
    }

    private MethodHandle function(String suffix, FunctionDescriptor type) {
        return LINKER.downcallHandle(library.find(name + "_" + suffix).orElseThrow(), type);
    }

    private void check(int code) throws Throwable {
        if (code != 0) {
            MemorySegment text = (MemorySegment) function("error", FunctionDescriptor.of(POINTER, INT)).invoke(code);
            throw new IllegalStateException(text.reinterpret(Long.MAX_VALUE).getString(0));
        }
    }

    public long inputBytes(int input) throws Throwable {
        return (long) function("input_bytes", FunctionDescriptor.of(LONG, POINTER, INT)).invoke(context, input);
    }

    public long outputBytes(int output) throws Throwable {
        return (long) function("output_bytes", FunctionDescriptor.of(LONG, POINTER, INT)).invoke(context, output);
    }

    /** Memory of an input, which the next runs read. */
    public MemorySegment input(int input) throws Throwable {
        long bytes = inputBytes(input);
        MemorySegment memory = arena.allocate(bytes, 64);
        MethodHandle set = function("set_input", FunctionDescriptor.of(INT, POINTER, INT, POINTER, LONG));
        check((int) set.invoke(context, input, memory, bytes));
        return memory;
    }

    public void run() throws Throwable {
        check((int) function("run", FunctionDescriptor.of(INT, POINTER)).invoke(context));
    }

    /** An output, valid until the next run. */
    public MemorySegment output(int output) throws Throwable {
        MethodHandle get = function("output", FunctionDescriptor.of(POINTER, POINTER, INT));
        return ((MemorySegment) get.invoke(context, output)).reinterpret(outputBytes(output));
    }

    @Override
    public void close() {
        try {
            function("destroy", FunctionDescriptor.ofVoid(POINTER)).invoke(context);
        } catch (Throwable error) {
            throw new IllegalStateException(error);
        }
        arena.close();
    }

    public static void main(String[] words) throws Throwable {
        try (Net net = new Net(Path.of(words[0]).toAbsolutePath(), words[1], 0)) {
            for (int i = 0; net.inputBytes(i) >= 0; i++) {
                MemorySegment memory = net.input(i);
                for (long at = 0; at + 4 <= memory.byteSize(); at += 4) {
                    memory.set(ValueLayout.JAVA_FLOAT, at, 0.5f);
                }
            }
            net.run();
            for (int o = 0; net.outputBytes(o) >= 0; o++) {
                MemorySegment found = net.output(o);
                System.out.println("output " + o + ": " + found.byteSize() + " bytes");
                for (long at = 0; at + 4 <= Math.min(found.byteSize(), 32); at += 4) {
                    System.out.println("  " + found.get(ValueLayout.JAVA_FLOAT, at));
                }
            }
        }
    }
}
