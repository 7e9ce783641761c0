# A C project built by make and by ninja, its programs run. Run plainly and buffered; both must print the same.
python3 - <<'P'
import os
os.makedirs("src"); os.makedirs("include")
N = 40
for i in range(N):
    sum = " + ".join(f"m{j}(x)" for j in range(max(0, i - 2), i)) or "1"
    headers = "".join(f'#include "m{j}.h"\n' for j in range(i))
    open(f"include/m{i}.h", "w").write(f"#pragma once\nint m{i}(int);\n")
    open(f"src/m{i}.c", "w").write(f'#include <stdio.h>\n{headers}int m{i}(int x) {{ return (x * {i} + {sum}) % 1000003; }}\n')
headers = "".join(f'#include "m{j}.h"\n' for j in range(N))
calls = " + ".join(f"m{j}(n)" for j in range(N))
open("src/main.c", "w").write(f'#include <stdio.h>\n{headers}int main(int n, char **v) {{ printf("%d\\n", {calls}); return 0; }}\n')
open("Makefile", "w").write("""CFLAGS = -O1 -Iinclude -MMD -MP
OBJ = $(patsubst src/%.c,obj/%.o,$(filter-out src/main.c,$(wildcard src/*.c)))
all: bin/static bin/shared bin/generated
obj/%.o: src/%.c | obj
	$(CC) $(CFLAGS) -fPIC -c -o $@ $<
obj bin:
	mkdir -p $@
lib.a: $(OBJ)
	ar rcsD $@ $^
libm.so: $(OBJ)
	$(CC) -shared -o $@ $^
bin/static: src/main.c lib.a | bin
	$(CC) $(CFLAGS) -o $@ $< lib.a
bin/shared: src/main.c libm.so | bin
	$(CC) $(CFLAGS) -o $@ $< -L. -l:libm.so -Wl,-rpath,$(CURDIR)
generated.c: bin/static
	(echo '#include <stdio.h>'; echo "int main(void) { puts(\\"generated `./bin/static`\\"); return 0; }") > $@
bin/generated: generated.c | bin
	$(CC) -o $@ $<
-include $(OBJ:.o=.d)
""")
P
run() { ./bin/static && ./bin/shared && ./bin/generated; }
make -s -j2 all; run; make -q all; echo up to date: $?
touch -d '+2 seconds' include/m35.h; make -n all 2> /dev/null | grep -c ' -c -o'; touch include/*.h
sed -i 's/1000003/1000033/' src/m3.c; touch -d '+2 seconds' src/m3.c; make -s -j2 all 2> /dev/null; run
strip bin/static; ./bin/static; objdump -d bin/static | md5sum; nm lib.a | wc -l; ldd bin/shared | grep -c libm.so
gcc -flto=2 -O2 -Iinclude src/*.c -o bin/lto; ./bin/lto; cp bin/lto bin/self; (exec ./bin/self); mv bin/self bin/moved; ./bin/moved
g++ -x c++ - -o bin/cpp <<'C'
#include <filesystem>
#include <fstream>
#include <iostream>
int main() {
    std::ofstream("o") << "by iostream";
    std::filesystem::copy("o", "p");
    std::filesystem::resize_file("p", 5);
    std::cout << std::filesystem::file_size("p") << std::ifstream("o").rdbuf() << std::endl;
    std::filesystem::rename("p", "q");
    std::filesystem::last_write_time("q", {});
}
C
./bin/cpp; cat q
md5sum lib.a obj/m7.o
if command -v cmake > /dev/null && command -v ninja > /dev/null; then
    cat > CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.13)
project(p C)
file(GLOB sources src/m*.c)
list(FILTER sources EXCLUDE REGEX main.c)
add_library(ms STATIC ${sources})
target_include_directories(ms PUBLIC include)
add_executable(app src/main.c)
target_link_libraries(app ms)
C
    cmake -G Ninja -S . -B cm > /dev/null; ninja -C cm -j2 > /dev/null; ./cm/app; ninja -C cm | tail -1
    touch -d '+3 seconds' src/m3.c; ninja -C cm -n | grep -c Building; cmake --build cm --target clean > /dev/null; ls cm | wc -l
fi
# what has this directory's path in it
rm -rf cm bin libm.so
